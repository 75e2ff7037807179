"""The shared package of the course *Attention, Head by Head*.

attention.py    scaled dot-product attention and the multi-head layer: the subject
masks.py        who may read whom: causal, padding, and how a mask is read
checks.py       the errors that speak
exchange.py     weights from and to nn.MultiheadAttention
positions.py    where a token stands: waves, a table, rotations, biases, or nothing
models.py       a transformer block, and a causal language model made of blocks
data.py         tasks with a known answer, and the text inside Python
training.py     one training loop, for one model or for many seeds at once
captions.py     the words under a picture
plotting.py     house style, show(figure, caption), heatmaps, grids of heads
pretrained.py   find, verify and load the files of a pretrained encoder
benchmark.py    speed as a ratio, measured only after an equality check
exercises/      check, progress, answer, and the exercises of each lesson

Imports run one way:

    checks <- masks <- attention <- exercises -> plotting -> captions
                       attention <- models
                       attention -> exchange
    checks <- positions, data, training

pretrained and benchmark stand alone: they know nobody here.
"""
