"""The pages, a module each (and its parts beside it); `directory` lists them."""
