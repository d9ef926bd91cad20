// Stands in front of the real one on the include path of accept_without_picojson.cpp.
#error picojson is not there
