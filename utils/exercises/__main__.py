"""The command `python -m utils.exercises mark FOLDER…`."""

from utils.exercises.mark import main

if __name__ == "__main__":  # a process that is spawned reads this file, too
    main()
