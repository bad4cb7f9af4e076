"""HTTP/1.1 and server-sent events: a sans-I/O core with sockets at the edge."""
