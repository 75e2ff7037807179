"""The shared package of the course *Attention, Head by Head*.

attention.py    scaled dot-product attention, masks, the multi-head layer
plotting.py     house style, show(figure, alt), heatmaps, grids of heads
pretrained.py   find, verify and load the files of a pretrained encoder
benchmark.py    speed as a ratio, measured only after an equality check
exercises/      check(name, your_function), progress(), and the exercises

Imports run one way: attention, plotting, pretrained and benchmark know nobody here;
exercises know attention and plotting.
"""
