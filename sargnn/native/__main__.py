"""``python -m sargnn.native [NAME ...]``"""

import sys

from sargnn.native.build import main

main(sys.argv[1:])
