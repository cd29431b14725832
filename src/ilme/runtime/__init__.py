"""The machine underneath: states, files, processes, CUDA."""
