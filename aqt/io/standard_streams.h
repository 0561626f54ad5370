#ifndef AQT_IO_STANDARD_STREAMS_H_
#define AQT_IO_STANDARD_STREAMS_H_

namespace aqt::io {

// Opens /dev/null in place of standard input, output and error if they are closed (`program <&- >&- 2>&-`). Without
// this the first file that a program opens gets the number of a closed stream, and its prints go into that file. Must
// be called first in main. Returns false, with errno, on failure: then the program must not open any file.
bool OpenStandardStreams();

}  // namespace aqt::io

#endif  // AQT_IO_STANDARD_STREAMS_H_
