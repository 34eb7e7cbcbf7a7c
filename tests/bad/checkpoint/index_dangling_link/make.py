# SPDX-License-Identifier: Apache-2.0
"""The index is a link to nothing, which is not to have none."""


def make(c):
    c.files["model.safetensors.index.json"] = lambda path: path.symlink_to("../blobs/gone")
