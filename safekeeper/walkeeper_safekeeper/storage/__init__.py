"""How a log lies in its folder, and how its end is found. Over a Disk port, as in the simulator."""
