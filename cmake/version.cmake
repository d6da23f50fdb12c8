# Run as a script on every build: writes OUTPUT with the version of the project and, where git can tell, of the commit.
set(full ${VERSION})
find_program(GIT git)
if(GIT AND EXISTS ${SOURCE_DIR}/.git)
  execute_process(COMMAND ${GIT} -C ${SOURCE_DIR} describe --always --dirty --match v*
    OUTPUT_VARIABLE commit ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
  if(NOT failed AND commit)
    set(full "${VERSION} (${commit})")
  endif()
endif()
set(content "/* Made by the build: the version of the project, and the same with the commit it was built from. */
#ifndef MK_VERSION_H
#define MK_VERSION_H

#define MK_VERSION \"${VERSION}\"
#define MK_VERSION_FULL \"${full}\"

#endif
")
set(old "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT content STREQUAL old)
  file(WRITE ${OUTPUT} "${content}")
endif()
