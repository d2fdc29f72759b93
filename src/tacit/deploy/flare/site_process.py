"""`python -m tacit.deploy.flare.site_process`: FLARE's client without anything that a server could misuse.

FLARE is made for sites that trust their server: a flag in the server's own message decides whether the site's
policy applies, and its commands include `cat` and `grep` on any file. Here the server is the adversary, so a
site accepts only what a run needs.
"""

from __future__ import annotations

import sys

from nvflare.fuel.f3.mpm import MainProcessMonitor
from nvflare.private.fed.app.client.client_train import main, parse_arguments
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

from tacit.deploy.flare.disk import outlive_full_disks
from tacit.deploy.flare.lifeline import hold_lifeline
from tacit.deploy.flare.site import harden_site

if __name__ == "__main__":
    hold_lifeline()
    outlive_full_disks()
    ClientRequestProcessors.request_processors[:] = harden_site(ClientRequestProcessors.request_processors)
    arguments = parse_arguments()
    sys.exit(MainProcessMonitor.run(main_func=main, run_dir=arguments.workspace, args=arguments))
