"""The shared package of the course *Attention, Head by Head*.

What several notebooks share, made to be read. Each file imports only files above it in
this list, and says in its first line, which stands here, what lives there:

  masks.py
      Masks: which keys a query may attend to, and how a mask is read.
  attention.py <- masks
      Scaled dot-product attention, and the multi-head layer built on it.
  positions.py <- masks
      Position schemes: how attention is told the order of the tokens.
  recording.py <- attention
      One recorder: look at, or replace, any activation of any model, from outside.
  models.py <- attention, masks, positions, recording
      Models of the course, made of blocks: a causal language model, and BERT's encoder.
  own.py <- attention, masks, positions
      Your own functions in the place of the course's, inside a whole model.
  data.py
      Data of the course: small tasks with a known answer, and the text inside Python.
  stories.py <- data
      Very short stories, written by a small grammar: what they say agrees with itself.
  pretrained.py <- models, positions, stories
      Trained models: their files found and verified, on the course's layers.
  training.py <- recording
      Training: a plain loop for one model, and the same loop for many copies at once.
  heads.py <- attention, masks, recording
      Scores of attention heads: each is a function of the attention weights alone.
  baselines.py <- heads, masks, recording
      Baselines: what a head without the skill scores, and how far chance could go.
  syntax.py <- baselines, masks, recording
      Do heads know grammar? Heads compared with the dependency trees of a treebank.
  words.py
      Words as a reader sees them: nothing invisible, endless, or turned round.
  plotting.py <- masks, words
      House style, figures and diagrams with captions, heat maps; what can be drawn.
  viewer.py <- masks, plotting, words
      The head viewer: one piece of HTML that needs no network, no kernel, no widgets.
  benchmark.py
      Speed as a ratio, measured side by side, after an equality check.

Beside them: `exercises` (check, progress, answer, mark; and what the answers of each
lesson are tried with); `examine` (is this attention right?), which reads the known
mistakes of the exercises (`notebooks/exercises/NN.txt`); viewer.js and viewer.css, the
script and the style of the viewer; and `tests`, the tests of all this.
"""
