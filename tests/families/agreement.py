"""The properties on which a plan of the converter must agree with a record (see README.md)."""
import re


def matches(entry, name):
    """Whether an entry of `ignore` covers a module, as compressed-tensors and vLLM match."""
    if entry.startswith("re:"):
        return re.match(entry[3:], name) is not None
    return entry == name


def ignored(ignore, name):
    return any(matches(entry, name) for entry in ignore)


def vllm_name(vllm, name):
    """A module or an entry of `ignore` after vLLM's renames (compressed_tensors.py, apply_vllm_mapper)."""
    if "." not in name or name.startswith("re:"):
        return name
    for old, new in vllm.get("substrings", []):
        name = name.replace(old, new, 1)
    for old, new in vllm.get("prefixes", []):
        if name.startswith(old):
            name = name.replace(old, new, 1)
    for old, new in vllm.get("suffixes", []):
        if name.endswith(old):
            name = name[:-len(old)] + new
    return name


def vllm_problems(record, quantized, ignore):
    """Errors when vLLM builds the model. Heads are left out, because their class is not a linear layer there."""
    out = []
    vllm = record["vllm"]
    ignore = [vllm_name(vllm, entry) for entry in ignore]
    heads = set(record["tied"]) | {t[:-len(".weight")] for t, why in record["kept"].items() if why in ("head",
            "classifier")}
    left = (set(record["quantized"]) | set(record["either"]) | set(record.get("vllm_float", []))) - set(quantized)
    float_names = sorted((set(record["ignore"]) | left) - heads)
    asked = {vllm_name(vllm, n) for n in float_names}
    for prefix in record["experts"]:
        names = vllm.get("expert_names", ["gate_proj", "up_proj", "down_proj"])
        asked |= {f"{vllm_name(vllm, prefix)}.0.{n}" for n in names}
    for name in sorted(asked):
        if not ignored(ignore, name):
            out.append(f"vLLM asks for {name}, which is not quantized, and no entry of ignore covers it")
    names = {vllm_name(vllm, n) for n in quantized}
    for name in sorted(names):
        if ignored(ignore, name):
            out.append(f"vLLM asks for {name}, which is quantized, and an entry of ignore covers it")
    for fused, parts in vllm.get("packed", {}).items():
        for name in sorted(names):
            at, _, last = name.rpartition(".")
            if last == parts[0] and any(f"{at}.{p}" in asked for p in parts[1:]):
                out.append(f"vLLM fuses {parts} of {at}, but not all are quantized")
    return out


def problems(record, quantized, ignore, inner=None):
    """The differences between a record and a plan: its quantized modules and its `ignore`.

    A tower may be left in float completely. `inner` maps names of modules in the checkpoint to those in the model, if
    they differ."""
    out = []
    quantized, expected = set(quantized), set(record["quantized"])
    either = set(record["either"]) | set(record.get("vllm_float", []))
    for prefix in record["towers"]:
        tower = {n for n in expected if n.startswith(prefix) or n == prefix}
        if not tower & quantized:
            expected -= tower
    for name in sorted(quantized - expected - either):
        why = record["kept"].get(name + ".weight", "not a module of the record")
        out.append(f"{name} is quantized, but is kept: {why} ({record['classes'].get(name, 'Linear')})")
    for name in sorted(expected - quantized - either):
        out.append(f"{name} ({record['classes'].get(name, 'Linear')}) is not quantized")
    left = (set(record["quantized"]) | either) - quantized
    names = record["ignore"] + record["ask"] + sorted(left)
    for name in sorted(set(names)):
        if not ignored(ignore, name):
            out.append(f"{name} is not quantized, and no entry of ignore covers it")
    for name in sorted(set(record["ask_quantized"])):
        if ignored(ignore, name):
            out.append(f"{name} is asked for as quantized, and an entry of ignore covers it")
    if "vllm" in record:
        out += vllm_problems(record, quantized, ignore)
    for name in sorted(quantized):
        for asked in {name, (inner or {}).get(name, name)}:
            if ignored(ignore, asked):
                out.append(f"{asked} is quantized, and an entry of ignore covers it")
    return out
