"""Print the options with which pip finds torch in an index: python docker/torch_index.py URL

An index that does not answer within three seconds is left out: it must not hold up the installation.
"""

import sys
import urllib.request

url = sys.argv[1]
try:
    urllib.request.urlopen(url + "/", timeout=3).close()
except Exception as error:  # any failure means the same: do without this index
    print(f"note: {url} does not answer ({error}); torch comes from the configured package index", file=sys.stderr)
else:
    print("--extra-index-url", url)
