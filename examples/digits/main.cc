// The command `digits`: ./bazelw run //examples/digits -- --help

#include <iostream>
#include <string>
#include <vector>

#include "aqt/io/file.h"
#include "aqt/io/standard_streams.h"
#include "examples/digits/command.h"

int main(int argc, char** argv) {
  if (!aqt::io::OpenStandardStreams()) return 4;
  return digits::DigitsMain(std::vector<std::string>(argv + 1, argv + argc), aqt::io::LocalFileSystem(), std::cout,
                            std::cerr);
}
