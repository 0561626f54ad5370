#!/usr/bin/env python3
"""Writes loader_names.json: the names by which vLLM asks for the quantization of a module.

    pip download vllm==0.33.0 --no-deps && unzip -q vllm-*.whl 'vllm/*.py' -d SRC
    python3 record_loaders.py SRC

The sources are parsed, not run. For each architecture the file has: the file of its class; `packed`, the fused layers and
their parts in the checkpoint; the renames of `hf_to_vllm_mapper`, which vLLM also applies to `ignore` (`substrings`,
`prefixes` and `suffixes`, in this order); `expert_names`, the names of the parts of an expert; and `float`, the
attributes of layers that are built without quantization."""
import argparse
import ast
import json
import os

LINEAR = {"Linear", "ReplicatedLinear", "ColumnParallelLinear", "RowParallelLinear", "MergedColumnParallelLinear",
          "QKVParallelLinear", "GateLinear"}


# Architectures whose modules differ from the names of their mapper: aria.py builds its language model as
# `language_model.model` and renames that to `language_model`.
OTHER_NAMES = {"AriaForConditionalGeneration"}


class Sources:
    def __init__(self, folder):
        self.trees = {}
        self.classes = {}  # name -> (file, node); (file, name) -> node
        for name in sorted(os.listdir(folder)):
            if name.endswith(".py"):
                with open(os.path.join(folder, name)) as f:
                    self.trees[name] = ast.parse(f.read())
                for node in self.trees[name].body:
                    if isinstance(node, ast.ClassDef):
                        self.classes.setdefault(node.name, (name, node))
                        self.classes[name, node.name] = node

    def find(self, file, name):
        node = self.classes.get((file, name))
        return (file, node) if node else self.classes.get(name, (None, None))

    def attribute(self, file, name, key, depth=0):
        """The expression that a class or one of its bases assigns to `key`, and its file."""
        file, node = self.find(file, name)
        if node is None or depth > 6:
            return None, None
        for statement in node.body:
            targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
            if any(isinstance(t, ast.Name) and t.id == key for t in targets) and getattr(statement, "value", None):
                value = statement.value
                if isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name):  # OtherClass.key
                    return self.attribute(file, value.value.id, value.attr, depth + 1)
                return file, value
        for base in node.bases:
            found = self.attribute(file, ast.unparse(base).split("[")[0], key, depth + 1)
            if found[1] is not None:
                return found
        return None, None


def architectures(tree):
    """Architecture -> (file, class), from the tables of registry.py."""
    out = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values):
                if isinstance(key, ast.Constant) and isinstance(value, ast.Tuple) and len(value.elts) == 2 and \
                        all(isinstance(e, ast.Constant) and isinstance(e.value, str) for e in value.elts):
                    out[key.value] = (value.elts[0].value + ".py", value.elts[1].value)
    return out


def literal(node):
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def renames(node):
    """The literal renames of a WeightsMapper(...), without those that drop a weight."""
    out = {}
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            name = {"orig_to_new_substr": "substrings", "orig_to_new_prefix": "prefixes",
                    "orig_to_new_suffix": "suffixes"}.get(keyword.arg)
            value = literal(keyword.value) if name else None
            pairs = [[k, v] for k, v in (value or {}).items() if v is not None]
            if pairs:
                out[name] = pairs
    return out


def float_layers(tree):
    """Attributes with a linear layer that is built without quantization."""
    out = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.targets[0],
                ast.Attribute):
            cls = ast.unparse(node.value.func).split(".")[-1]
            given = {k.arg: ast.unparse(k.value) for k in node.value.keywords}
            positional = any(ast.unparse(a) == "quant_config" for a in node.value.args)
            if cls in LINEAR and not positional and None not in given and (cls == "Linear" or given.get("quant_config") in (None, "None")):
                out.add(node.targets[0].attr)
    return sorted(out)


def expert_names(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg == "ckpt_names":
                    gate, down, up = literal(keyword.value)
                    return [gate, up, down]
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    args = parser.parse_args()
    here = os.path.dirname(os.path.abspath(__file__))
    sources = Sources(os.path.join(args.source, "vllm/model_executor/models"))
    out = {}
    for arch, (file, cls) in sorted(architectures(sources.trees["registry.py"]).items()):
        if file not in sources.trees or arch in OTHER_NAMES:
            continue
        entry = {"file": "vllm/model_executor/models/" + file}
        packed = literal(sources.attribute(file, cls, "packed_modules_mapping")[1] or ast.Constant(None))
        fused = {k: v for k, v in (packed or {}).items() if len(v) > 1}
        if fused:
            entry["packed"] = fused
        entry.update(renames(sources.attribute(file, cls, "hf_to_vllm_mapper")[1]))
        names = expert_names(sources.trees[file])
        if names:
            entry["expert_names"] = names
        layers = float_layers(sources.trees[file])
        if layers:
            entry["float"] = layers
        out[arch] = entry
    with open(os.path.join(here, "loader_names.json"), "w") as f:
        f.write('{"source": "vLLM 0.33.0", "architectures": {\n')
        f.write(",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in out.items()))
        f.write("\n}}\n")


if __name__ == "__main__":
    main()
