# SPDX-License-Identifier: Apache-2.0
"""config.json is a link to nothing."""


def make(c):
    c.files["config.json"] = lambda path: path.symlink_to("../blobs/gone")
