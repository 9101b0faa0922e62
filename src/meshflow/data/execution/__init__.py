"""How elements are made: rows gathered, chunks, maps by programs and on the host, errors on the way."""
