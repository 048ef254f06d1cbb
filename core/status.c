/* SPDX-License-Identifier: Apache-2.0
 * Status names and the per-thread failure message. */
#include "core/kedge.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
  const char *name, *text;
} statuses[] = {
#define KEDGE_STATUS(name, text) {#name, text},
#include "core/status.def"
#undef KEDGE_STATUS
};

const char *kedge_status_name(kedge_status status) {
  return (unsigned)status < KEDGE_STATUS_COUNT ? statuses[status].name : "ERR_UNKNOWN";
}

const char *kedge_status_text(kedge_status status) {
  return (unsigned)status < KEDGE_STATUS_COUNT ? statuses[status].text : "unknown status";
}

enum { MESSAGE_SIZE = 8192 }; /* the problems of a whole file fit */
static _Thread_local char message[MESSAGE_SIZE];

/* A message is one line on a terminal whatever a hostile file put into a name. Bytes over 127 (UTF-8) pass.
 */
static void set_message(const char *raw) {
  size_t out = 0;
  for (const unsigned char *c = (const unsigned char *)raw; *c && out + 5 < MESSAGE_SIZE; c++) {
    if (*c < 32 || *c == 127)
      out += (size_t)snprintf(message + out, MESSAGE_SIZE - out, "\\x%02x", *c);
    else
      message[out++] = (char)*c;
  }
  message[out] = 0;
}

kedge_status kedge_fail(kedge_status status, const char *format, ...) {
  char raw[MESSAGE_SIZE];
  va_list list;
  va_start(list, format);
  vsnprintf(raw, sizeof raw, format, list);
  va_end(list);
  set_message(raw);
  return status;
}

kedge_status kedge_fail_in(kedge_status status, const char *format, ...) {
  char raw[2 * MESSAGE_SIZE];
  va_list list;
  va_start(list, format);
  int used = vsnprintf(raw, MESSAGE_SIZE, format, list);
  va_end(list);
  size_t at = used < 0 ? 0 : (size_t)used < MESSAGE_SIZE ? (size_t)used : MESSAGE_SIZE - 1;
  /* A message that names the same place, or one inside it, already says where. */
  if (at && !strncmp(message, raw, at) && (message[at] == ':' || message[at] == '/')) return status;
  snprintf(raw + at, sizeof raw - at, ": %s", message);
  set_message(raw);
  return status;
}

const char *kedge_message(void) {
  return message;
}

const char *kedge_version(void) {
  return "0.1.0";
}
