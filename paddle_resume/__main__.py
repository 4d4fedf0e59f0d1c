"""`python -m paddle_resume`: the command where no script is installed."""

from paddle_resume.cli.main import main

if __name__ == "__main__":
    main()
