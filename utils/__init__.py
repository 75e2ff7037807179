"""The shared package of the course *Attention, Head by Head*.

Attention, and what is built of it:
  attention.py      scaled dot-product attention and the multi-head layer: the subject
  masks.py          causal and padding masks, and how a mask is read
  checks.py         general checks of arguments, whose errors say what to do
  positions.py      position schemes: learned, sinusoidal, rotary, ALiBi, T5, or none
  models.py         a block, and what is made of blocks: a language model, an encoder
  pretrained.py     MiniLM and SmolLM2: files found, verified, on the course's layers
  own.py            your own functions in the place of the course's, in a whole model
  data.py           tasks with a known answer, and the text inside Python
  training.py       a plain training loop, and one for many seeds at once

Looking at heads:
  recording.py      the weights of every layer, while a model runs
  heads.py          the scores of a head, and which queries they count
  baselines.py      uniform, untrained, entropy-matched attention; tables with intervals
  interventions.py  ablation and importance of heads, by hooks from outside
  syntax.py         sentences with their trees, from CoNLL-U, and heads against them

On the page:
  words.py          how tokens are shown: nothing invisible, nothing turned round
  plotting.py       house style, show(figure, caption), diagram(name), heat maps, heads
  viewer.py         the interactive viewer (viewer.js its script, viewer.css its style)
  benchmark.py      speed as a ratio, measured only after an equality check
  exercises/        check, progress, answer, and the exercises of each lesson
  tests/            the tests of all this

Imports run one way, and nothing here imports the exercises:

    checks <- masks <- attention <- models <- pretrained -> positions
                       attention <- own, models -> positions
                       attention <- recording <- heads <- baselines <- syntax
                                    recording <- interventions
    checks <- positions, data, training, plotting <- viewer
                                words <- plotting, viewer
    attention, plotting <- exercises
"""
