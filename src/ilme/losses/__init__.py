"""Training losses. Each takes the output layer's weights and never stores the logits of a whole batch.

rnnt: the transducer loss (rnnt_triton, rnnt_kernels: the CUDA path). aed: the attention
decoder's, and guide what draws its attention to the labels at first. ctc: the auxiliary loss of both. cross_entropy and
nce: language models.
"""
