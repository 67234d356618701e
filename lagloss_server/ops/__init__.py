"""Running lagloss: embedded servers, processes, jars, doctor, demo."""
