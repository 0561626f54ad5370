// The `aqt` command.

#include "serving/cli/command.h"
#include "serving/cli/process.h"

int main(int argc, char** argv) { return aqt::serving::RunProcess(argc, argv, aqt::serving::AqtMain); }
