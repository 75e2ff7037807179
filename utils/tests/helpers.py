"""What several test files share."""

# --- attention and its layer ---


# --- models, positions, training ---


# --- heads and their baselines ---


# --- pictures and the viewer ---


# --- exercises ---
