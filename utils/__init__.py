"""The shared package of the course *Attention, Head by Head*.

attention.py    scaled dot-product attention, masks, the multi-head layer
plotting.py     house style, show(figure, caption), heatmaps, grids of heads
captions.py     the words under a picture: what a heatmap shows, written as HTML
pretrained.py   find, verify and load the files of a pretrained encoder
benchmark.py    speed as a ratio, measured only after an equality check
exercises/      check(name, your_function), progress(), and the exercises

Imports run one way: attention, captions, pretrained and benchmark know nobody here;
plotting knows captions; exercises know attention and plotting.
"""
