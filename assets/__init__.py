"""Pictures, diagrams and stored studies, each beside what makes it.

From the root of the repository: `python -m assets.draw_heads`, `draw_copying` and
`draw_roles` (pictures), `python -m assets.diagrams`, `python -m assets.studies`.
"""
