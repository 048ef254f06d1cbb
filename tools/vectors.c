#include "tools/vectors.h"
kedge_status vectors_run(const char *path) { (void)path; return KEDGE_OK; }
