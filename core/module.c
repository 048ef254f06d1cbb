/* SPDX-License-Identifier: Apache-2.0
 *
 * Backends that are modules: libkedge-<name>.so, loaded when a device of that name is first opened, so that
 * one installation starts on a machine without any driver. A module is looked for in the folder
 * KEDGE_MODULES, else beside the library or program that holds this code, else where the system looks. It
 * stays loaded: vendors' runtimes do not take being unloaded.
 */
#include "core/module.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const names[] = {"vulkan", "cuda", "hip", "sim"};
enum { MODULE_COUNT = sizeof names / sizeof *names };
static const kedge_backend *loaded[MODULE_COUNT];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

const char *kedge__module_name(uint32_t index) {
  return index < MODULE_COUNT ? names[index] : NULL;
}

/* "<folder>/libkedge-<name>.so", owned by the caller; NULL without memory. */
static char *path_of(const char *name) {
  char self[4096];
  Dl_info info;
  const char *folder = getenv("KEDGE_MODULES"), *slash = NULL;
  if (folder && *folder) return kedge_format("%s/libkedge-%s.so", folder, name);
  /* A program's own name may be relative to a folder that it has left; a library's is where it was found. */
  if (dladdr(&lock, &info) && info.dli_fname && info.dli_fname[0] == '/')
    slash = strrchr(info.dli_fname, '/');
  if (slash) return kedge_format("%.*s/libkedge-%s.so", (int)(slash - info.dli_fname), info.dli_fname, name);
  ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  if (length > 0) self[length] = 0;
  if (length > 0 && (slash = strrchr(self, '/')))
    return kedge_format("%.*s/libkedge-%s.so", (int)(slash - self), self, name);
  return kedge_format("libkedge-%s.so", name);
}

/* Whether all that would be mapped of a module is in its file: the system's loader does not look, and what a
 * copy that was cut short lacks ends the program. What is no module at all it tells itself. */
static bool is_whole(const char *path) {
  const int file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  struct stat info;
  ElfW(Ehdr) head;
  ElfW(Phdr) part;
  bool whole = true;
  if (file < 0) return true;
  if (fstat(file, &info) == 0 && S_ISREG(info.st_mode) && pread(file, &head, sizeof head, 0) == sizeof head &&
      !memcmp(head.e_ident, ELFMAG, SELFMAG) && head.e_phentsize == sizeof part)
    for (uint64_t i = 0; i < head.e_phnum && whole; i++) {
      const off_t at = (off_t)(head.e_phoff + i * sizeof part);
      const uint64_t bytes = (uint64_t)info.st_size;
      whole = pread(file, &part, sizeof part, at) == sizeof part &&
              (part.p_type != PT_LOAD || (part.p_offset <= bytes && part.p_filesz <= bytes - part.p_offset));
    }
  close(file);
  return whole;
}

static uint32_t contract(void) {
  uint64_t args = 0;
  for (uint32_t i = 0; i < KEDGE_OP_COUNT; i++) args += (i + 1) * kedge_op_get((kedge_op)i)->args_size_f32;
  return KEDGE_MODULE_CONTRACT(args);
}

static kedge_status load(const char *name, const kedge_backend **backend) {
  char *path = path_of(name);
  if (!path) return KEDGE_ERR_MEMORY;
  kedge_status status = KEDGE_OK;
  void *handle = NULL;
  if (strchr(path, '/') && access(path, R_OK) != 0) {
    status = kedge_fail(KEDGE_ERR_DEVICE, "backend %s: %s is not there; it is built where its toolkit is",
                        name, path);
    goto done;
  }
  if (strchr(path, '/') && !is_whole(path)) {
    status = kedge_fail(KEDGE_ERR_DEVICE, "backend %s: %s is cut short", name, path);
    goto done;
  }
  handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    status = kedge_fail(KEDGE_ERR_DEVICE, "backend %s: %s", name, dlerror());
    goto done;
  }
  const kedge_module *module = dlsym(handle, "kedge_backend_module");
  if (!module || module->version != contract() || module->ops != KEDGE_OP_COUNT ||
      module->step_bytes != sizeof(kedge_step)) {
    status = kedge_fail(KEDGE_ERR_DEVICE, "backend %s: %s belongs to another version of Kedge", name, path);
    dlclose(handle);
    goto done;
  }
  *backend = module->backend;
done:
  kedge_free(path);
  return status;
}

kedge_status kedge__module_load(const char *name, const kedge_backend **backend) {
  kedge_status status = KEDGE_OK;
  *backend = NULL;
  for (uint32_t i = 0; i < MODULE_COUNT; i++) {
    if (strcmp(names[i], name) != 0) continue;
    pthread_mutex_lock(&lock);
    if (!loaded[i]) status = load(name, &loaded[i]);
    *backend = loaded[i];
    pthread_mutex_unlock(&lock);
  }
  return status;
}
