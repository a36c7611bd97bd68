"""How Sphinx shows the pages that build.py collects."""

project = "oocpr"
html_title = "oocpr"
html_theme = "furo"
html_show_copyright = False
html_copy_source = False
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
myst_heading_anchors = 4
# Docstrings are NumPy's; types stand in signatures.
napoleon_google_docstring = False
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
maximum_signature_line_length = 80
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
