"""The shared package of the course *Attention, Head by Head*.

attention.py    scaled dot-product attention, masks, the multi-head layer
plotting.py     house style, show(figure, alt), heatmaps, grids of heads
pretrained.py   find, verify and load the files of a pretrained encoder
exercises/      check(name, your_function), progress(), and the exercises

Imports run one way: `attention` knows nobody, `plotting` and `pretrained` know only
tensors, `exercises` know attention and plotting.
"""
