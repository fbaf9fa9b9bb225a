"""What is claimed about speed, measured."""
