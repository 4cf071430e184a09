"""How the requests of a batch become the arrays that a model takes, and its arrays become their answers."""
