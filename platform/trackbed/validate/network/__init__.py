"""The way ranks find each other and talk: interfaces, ports, gloo and MPI."""
