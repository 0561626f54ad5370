#!/usr/bin/env python3
"""Writes the tensors and metadata of a GGUF file as a set of files, the first of which has only metadata.

usage: make_split.py FILE OUT.gguf        (gguf 0.19.0)
"""
import sys

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter

source = GGUFReader(sys.argv[1])
writer = GGUFWriter(sys.argv[2], source.fields["general.architecture"].contents(), split_max_tensors=9, small_first_shard=True)
for key, field in source.fields.items():
    if key.startswith("GGUF.") or key == "general.architecture":
        continue
    sub_type = field.types[1] if field.types[0] == GGUFValueType.ARRAY else None
    writer.add_key_value(key, field.contents(), field.types[0], sub_type=sub_type)
for tensor in source.tensors:
    writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
