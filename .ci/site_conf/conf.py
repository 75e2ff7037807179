"""How Sphinx builds the web site; `.ci/site` calls it and adds the repository's URL."""

project = html_title = "Attention, Head by Head"
root_doc = "index"
extensions = ["myst_nb", "sphinx_copybutton", "sphinx.ext.mathjax"]
extensions += ["sphinx-mathjax-offline"]  # copies MathJax into the site

nb_execution_mode = "off"  # the outputs are stored, and tested elsewhere
myst_enable_extensions = ["amsmath", "dollarmath"]
myst_heading_anchors = 4

html_theme = "sphinx_book_theme"
html_theme_options = {
    "repository_branch": "main",
    "use_repository_button": True,
    "use_download_button": False,  # it would offer the copy made for the site
    "launch_buttons": {"colab_url": "https://colab.research.google.com"},
    "home_page_in_toc": True,
    "navbar_persistent": [],  # one search field, at the side
    "footer_content_items": [],
    "show_navbar_depth": 2,  # each lesson with its deeper notebook
}
html_context = {"default_mode": "auto"}  # light or dark as the reader's system is
html_static_path = ["_static"]
html_favicon = "_static/favicon.svg"
html_css_files = ["course.css"]
html_js_files = ["course.js"]
html_copy_source = False
copybutton_selector = ".cell_input pre, div.highlight-sh pre"
