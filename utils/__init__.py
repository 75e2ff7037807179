"""The shared package of the course *Attention, Head by Head*.

Attention and what is built of it:
  attention.py      scaled dot-product attention and the multi-head layer: the subject
  masks.py          who may read whom: causal, padding, and how a mask is read
  checks.py         the errors that speak
  exchange.py       weights from and to nn.MultiheadAttention
  positions.py      where a token stands: waves, a table, rotations, biases, or nothing
  models.py         a transformer block, and a causal language model made of blocks
  encoder.py        the pretrained encoder, on the course's attention or on yours
  pretrained.py     find, verify and load the files of that encoder
  data.py           tasks with a known answer, and the text inside Python
  training.py       one training loop, for one model or for many seeds at once
  studies.py        the stored studies: how their scripts run, how results are written

Looking at heads:
  recording.py      the weights of every layer, while a model reads
  counting.py       which queries a score counts, and what they may read
  heads.py          the scores of a head: previous token, entropy, induction, ...
  nulls.py          what no skill would score: even spread, untrained, sharpened
  scores.py         tables: value, nulls, lift and interval
  interventions.py  heads taken away: ablation, importance, pruning
  treebank.py       sentences with their trees, from a CoNLL-U file
  syntax.py         heads against the arcs of those trees

On the page:
  captions.py       the words under a picture
  plotting.py       house style, show(figure, caption), heat maps, grids of heads
  viewer.py         the interactive viewer (its script: viewer.js)
  benchmark.py      speed as a ratio, measured only after an equality check
  exercises/        check, progress, answer, and the exercises of each lesson

Imports run one way:

    checks <- masks <- attention <- exercises -> plotting -> captions
                       attention <- models <- encoder -> positions, pretrained
                       attention -> exchange
                       attention <- recording <- heads <- nulls <- scores
                                    recording <- interventions, syntax -> treebank
    checks <- positions, data, training, counting <- heads
    captions <- viewer

pretrained, treebank, benchmark and studies stand alone: they know nobody here.
"""
