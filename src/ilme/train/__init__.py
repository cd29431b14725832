"""Training. `runs` puts a run together, `loop` runs it, `snapshots` lets it go on after anything.

options: what can be set. objectives: networks with their losses. sources and resident: batches from text, memory and
the device. optimiser: groups, schedule, average. monitor: internal-LM perplexity. journal: metrics, progress, curves.
alignment: LSTM widths that suit the device. joint_start, decoder_start: networks that begin as copies of CTC's layer.
"""
