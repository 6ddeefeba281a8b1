import re


def slug(title):
    return '-'.join(re.findall(r'[a-z0-9]+', title.lower()))
