"""The ground that every room of the server stands on: settings, errors, and the small things that all of them use."""
