"""x"""
def derived_form(a): return None
