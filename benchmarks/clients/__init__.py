"""The programs that make load, each as a function that returns what one run of it measured."""
