"""Names of columns that are hard to quote, or that the comparison itself uses."""

NAMES = ["back`tick", "a.b", "two words", "`", "a`.`b", "_times", "c0", "Ünï", "a,b", "(x)"]
