"""The commands as they are typed: arguments, options and help, a module for each group of them."""
