"""Compiles text files into a C++ source file, so that a program needs no file at run time."""

def embed_texts(name, srcs, out, header, namespace, function):
    """Generates a C++ source.

    Args:
      name: the name of the rule.
      srcs: the text files; none may contain the string )~~~".
      out: the C++ source, which defines `function`: std::vector<EmbeddedText> of {base name without extension, text}.
      header: declares EmbeddedText and the function.
      namespace: the namespace of both.
      function: the name of the function.
    """
    native.genrule(
        name = name,
        srcs = srcs,
        outs = [out],
        cmd = """{
          echo '#include "%s"'
          echo 'namespace %s {'
          echo 'std::vector<EmbeddedText> %s() {'
          echo '  return {'
          for f in $(SRCS); do
            b=$$(basename $$f)
            echo "      {\\"$${b%%.*}\\", R\\"~~~("
            cat $$f
            echo ')~~~"},'
          done
          echo '  };'
          echo '}'
          echo '}  // namespace %s'
        } > $@""" % (header, namespace, function, namespace),
    )
