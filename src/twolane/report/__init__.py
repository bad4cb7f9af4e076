"""A results folder in, one offline HTML file out."""
