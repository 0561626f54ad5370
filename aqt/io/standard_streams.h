#ifndef AQT_IO_STANDARD_STREAMS_H_
#define AQT_IO_STANDARD_STREAMS_H_

namespace aqt::io {

// Opens /dev/null in place of standard input, output and error if they are closed (`program <&- >&- 2>&-`). Otherwise
// the first file that a program opens gets the number of a closed stream, and what the program prints goes into that
// file. Must be called first in main. Returns false, with errno, on failure: the program must then not open any file.
bool OpenStandardStreams();

}  // namespace aqt::io

#endif  // AQT_IO_STANDARD_STREAMS_H_
