#!/usr/bin/env python3
"""Makes the objects of Debian's archives that use thread-local variables fit for a shared library.

usage: bazel/shared_tls.py OUT.o ARCHIVE...

Debian compiles its archives for executables (-fPIE). Such code also works in a shared library whose symbols are hidden, with one
exception: it finds thread-local variables at a distance from %fs that the linker must know ("local exec"), and in a shared library
only the loader knows it. A few instructions in a handful of objects do so. This script takes those objects and replaces each of
these instructions by a jump to a copy of it that loads the distance from memory ("initial exec") and jumps back. OUT.o holds the
changed objects; linked before the archives, it takes the place of theirs.

The instructions are checked against the few forms that g++ emits. Anything else is an error, and so is an architecture other than
x86-64. The output depends only on the archives.
"""
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

R_X86_64_PC32, R_X86_64_TPOFF32 = 2, 23
SHT_SYMTAB, SHT_RELA = 2, 4
GLOBAL_NOTYPE, GLOBAL_TLS = 0x10, 0x16  # binding and type of a symbol
HIDDEN = 2
SECTION, SYMBOL, RELA = struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ"), struct.Struct("<QQq")
REGISTERS = [("rax", "eax", "ax", "al"), ("rcx", "ecx", "cx", "cl"), ("rdx", "edx", "dx", "dl"), ("rsi", "esi", "si", "sil"),
             ("rdi", "edi", "di", "dil"), ("r8", "r8d", "r8w", "r8b"), ("r9", "r9d", "r9w", "r9b")]


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def instructions(path, section):
    """{offset: (length, text)} of the instructions of a section, as objdump prints them."""
    found, last = {}, None
    for line in run("objdump", "-d", "-w", f"--section={section}", str(path)).splitlines():
        match = re.match(r" *([0-9a-f]+):\t((?:[0-9a-f]{2} )+) *\t(.*)", line)
        if match:
            last = int(match[1], 16)
            found[last] = (len(match[2].split()), match[3].split("#")[0].strip())
    return found


def thunk(text, variable, addend):
    """The assembly that does what the instruction does, with the variable's distance from %fs taken from memory."""
    if match := re.fullmatch(r"lea +0x0\((%\w+)\),(%\w+)", text):
        base, to = match.groups()
        if base != to:
            return [f"mov {variable}@gottpoff(%rip),{to}", f"lea {addend}({base},{to}),{to}"]
        return [f"add {variable}@gottpoff(%rip),{to}", f"lea {addend}({to}),{to}"]
    if match := re.fullmatch(r"add +\$0x0,(%r\w+)", text):
        if addend != 0:
            raise ValueError(f"the addend {addend}")
        return [f"add {variable}@gottpoff(%rip),{match[1]}"]
    if not re.fullmatch(r"(mov|cmp)[bwlq]? +(%\w+,%fs:0x0|\$0x[0-9a-f]+,%fs:0x0|%fs:0x0,%\w+)", text) or "%rsp" in text:
        raise ValueError(f"the instruction \"{text}\"")
    used = set(re.findall(r"%(\w+)", text))
    scratch = next(names[0] for names in REGISTERS if not used.intersection(names))
    # Below %rsp are up to 128 bytes that the function may use. None of these instructions changes the flags.
    return ["lea -128(%rsp),%rsp", f"push %{scratch}", f"mov {variable}@gottpoff(%rip),%{scratch}",
            text.replace("%fs:0x0", f"%fs:{addend}(%{scratch})"), f"pop %{scratch}", "lea 128(%rsp),%rsp"]


class Object:
    """An ELF object whose relocations of kind TPOFF32 are replaced."""

    def __init__(self, path):
        self.path, self.data = path, bytearray(path.read_bytes())
        if self.data[:6] != b"\x7fELF\x02\x01" or self.data[18] != 62:
            raise ValueError("not an object for x86-64")
        (self.sections_at,) = struct.unpack_from("<Q", self.data, 40)
        _, count, names = struct.unpack_from("<HHH", self.data, 58)
        self.sections = [list(SECTION.unpack_from(self.data, self.sections_at + i * SECTION.size)) for i in range(count)]
        self.names = self.sections[names]
        self.symtab = next(s for s in self.sections if s[1] == SHT_SYMTAB)
        self.strtab = self.sections[self.symtab[6]]
        self.new_symbols, self.new_strings = b"", b""

    def section_name(self, section):
        at = self.names[4] + section[0]
        return self.data[at:self.data.index(0, at)].decode()

    def add_symbol(self, name, kind, section, value):
        """Adds a global, hidden symbol, and returns its number. Section 0: defined in another object."""
        string = self.strtab[5] + len(self.new_strings)
        number = (self.symtab[5] + len(self.new_symbols)) // SYMBOL.size
        self.new_strings += name.encode() + b"\0"
        self.new_symbols += SYMBOL.pack(string, kind, HIDDEN if section else 0, section, value, 0)
        return number

    def fix(self, prefix):
        """Replaces the instructions, and returns the assembly of their copies."""
        assembly, variables = [], {}
        for section in [s for s in self.sections if s[1] == SHT_RELA]:
            code = None
            for at in range(section[4], section[4] + section[5], RELA.size):
                offset, info, addend = RELA.unpack_from(self.data, at)
                if info & 0xffffffff != R_X86_64_TPOFF32:
                    continue
                target = self.sections[section[7]]
                code = code or instructions(self.path, self.section_name(target))
                start = next(o for o in range(offset, offset - 15, -1) if o in code)
                length, text = code[start]
                symbol = info >> 32
                if symbol not in variables:  # an alias, because the variable may be local
                    _, kind, _, home, value, _ = SYMBOL.unpack_from(self.data, self.symtab[4] + symbol * SYMBOL.size)
                    if kind & 15 != GLOBAL_TLS & 15 or home == 0:
                        raise ValueError("a thread-local variable of another object")
                    variables[symbol] = f"{prefix}_variable_{len(variables)}"
                    self.add_symbol(variables[symbol], GLOBAL_TLS, home, value)
                name = f"{prefix}_{len(assembly)}"
                assembly.append([f"{name}:", *thunk(text, variables[symbol], addend), f"jmp {name}_back"])
                self.add_symbol(f"{name}_back", GLOBAL_NOTYPE, section[7], start + length)
                jump = self.add_symbol(name, GLOBAL_NOTYPE, 0, 0)
                self.data[target[4] + start:target[4] + start + length] = b"\xe9\0\0\0\0".ljust(length, b"\xcc")
                RELA.pack_into(self.data, at, start + 1, jump << 32 | R_X86_64_PC32, -4)
        return [line for lines in assembly for line in lines]

    def write(self, path):
        """The object with its new symbols: the tables that grew, and the section headers, are at the end."""
        for section, new in ((self.symtab, self.new_symbols), (self.strtab, self.new_strings)):
            old = bytes(self.data[section[4]:section[4] + section[5]])
            self.data += bytes(-len(self.data) % 8)
            section[4], section[5] = len(self.data), len(old) + len(new)
            self.data += old + new
        self.data += bytes(-len(self.data) % 8)
        struct.pack_into("<Q", self.data, 40, len(self.data))
        for section in self.sections:
            self.data += SECTION.pack(*section)
        path.write_bytes(self.data)


def members(archive):
    """The objects of an archive that have such relocations."""
    found, member = [], None
    for line in run("readelf", "-rW", str(archive)).splitlines():
        if line.startswith("File: "):
            member = line[line.index("(") + 1:-1]
        elif " R_X86_64_TPOFF32 " in line and member not in found:
            found.append(member)
    return found


def main():
    out, archives = pathlib.Path(sys.argv[1]).resolve(), [pathlib.Path(path).resolve() for path in sys.argv[2:]]
    with tempfile.TemporaryDirectory() as folder:
        folder, objects, assembly = pathlib.Path(folder), [], [".text"]
        for archive in archives:
            for member in members(archive):
                number = len(objects)
                (folder / "member.o").write_bytes(
                    subprocess.run(["ar", "p", str(archive), member], check=True, capture_output=True).stdout)
                try:
                    source = Object(folder / "member.o")
                    assembly += [line if line.endswith(":") else "\t" + line for line in source.fix(f"aqt_tls_{number}")]
                except (ValueError, StopIteration) as error:
                    sys.exit(f"shared_tls.py: {archive}({member}) has what this script does not know: {error}")
                objects.append(folder / f"{number}.o")
                source.write(objects[-1])
        assembly += [f".globl {line[:-1]}\n.hidden {line[:-1]}" for line in assembly if line.startswith("aqt_tls_")]
        (folder / "thunks.s").write_text("\n".join(assembly) + '\n.section .note.GNU-stack,"",@progbits\n')
        run("as", "-o", str(folder / "thunks.o"), str(folder / "thunks.s"))
        run("ld", "-r", "-o", str(out), str(folder / "thunks.o"), *map(str, objects))


if __name__ == "__main__":
    main()
