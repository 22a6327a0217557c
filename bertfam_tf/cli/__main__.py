"""``python -m bertfam_tf.cli``."""

import sys

from bertfam_tf.cli.main import main

sys.exit(main())
