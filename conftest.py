"""What pytest leaves alone where an extra is not installed: its modules cannot even be imported."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("nvflare") else ["src/tacit/deploy/flare/*"]
